"""What PyTorch has in C++."""
