"""How fast memory and links are by themselves: the bandwidth of the node's memory, and of copies to and between devices.

- `memory` says what is measured of the node's memory, `copies` what of the devices' links.
- `measuring` measures either, stores it and prints it. Both are tables of `Rate`.
"""
