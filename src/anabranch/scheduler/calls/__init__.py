"""The calls that members make of their channels: the books, one idea a file. Pure."""
