"""The HTTP server: OpenAI's API and epicrag's own, over one index and one engine."""
