"""What an algorithm costs on a described network, in closed form or from its schedule."""
