"""Linear attention: naive (the truth), dense, chunked, and the module around them."""
