"""What an algorithm costs on a described network: exactly from its schedule, or by an estimate."""
