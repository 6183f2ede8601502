"""What a decision looks like: the rows behind the pictures, the pictures, and one HTML page."""
