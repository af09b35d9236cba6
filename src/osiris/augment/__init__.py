"""Two random views of every image of a batch."""
