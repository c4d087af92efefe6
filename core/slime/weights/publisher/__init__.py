"""In trainers: new weight versions on their way to the engines."""
