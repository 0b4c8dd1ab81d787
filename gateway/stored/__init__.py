"""What tenants keep: responses, conversations and chats, in a database."""
