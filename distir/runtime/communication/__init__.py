"""Collectives: as the backends offer them, in messages, of ragged parts, of flat parameters."""
