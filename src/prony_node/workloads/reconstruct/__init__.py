"""Images described by few numbers and made again from them."""
