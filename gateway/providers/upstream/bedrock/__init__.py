"""AWS Bedrock's Converse API as an upstream, signed and framed by botocore (`penstock[bedrock]`)."""
