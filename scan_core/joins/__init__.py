"""Keys of joins: key sets, their types, their cost, and filters that a scan carries for them."""
