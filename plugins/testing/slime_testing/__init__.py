"""What the tests of core and of every plugin share."""
