"""What belongs to no other part."""

from torch.utils import weak as weak
