"""The datasets of the paper [Xu2024], prepared as its section 5.1 describes them."""
