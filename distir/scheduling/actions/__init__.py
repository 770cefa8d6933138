"""What the ops of the `schedule` dialect do, registered when this package is imported."""

from distir.registries import import_families

import_families(__name__, __path__)
