"""What processes tell one another to assign credit: bytes and seconds, by sums and turns or by gathering everything."""
