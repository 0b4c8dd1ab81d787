"""Questions of your own for `penstock eval models --data`: their file, their graders, the judge."""
