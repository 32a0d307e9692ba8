"""The mental model: messages, channels, policies, parties, views and guesses."""
