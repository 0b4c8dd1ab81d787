"""`penstock endpoint-picker`: gateways of the Gateway API ask it which endpoint gets a request.

The protocol is that of the Gateway API Inference Extension (proposal 004) over Envoy's external processing.
"""
