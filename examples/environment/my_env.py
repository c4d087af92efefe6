class GuessTheDigit:
    """The model finds a digit in four guesses; it is the last one of the row's label."""

    def reset(self, task):
        self.digit, self.left = int(task.prompt.label) % 10, 4
        return "I think of a digit."

    def step(self, response):
        self.left -= 1
        try:
            guess = int(response)
        except ValueError:
            return "That is no number.", -0.1, self.left == 0
        if guess == self.digit:
            return None, 1.0, True
        return "Higher." if guess < self.digit else "Lower.", 0.0, self.left == 0
