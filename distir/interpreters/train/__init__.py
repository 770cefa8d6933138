"""
Reference implementations of the `train` dialect, one file per family. Importing this
package registers them.
"""

from distir.interpreters.train import (
    activation as activation,
)
from distir.interpreters.train import attention as attention
from distir.interpreters.train import batch_normalization as batch_normalization
from distir.interpreters.train import convolution as convolution
from distir.interpreters.train import dropout as dropout
from distir.interpreters.train import indexing as indexing
from distir.interpreters.train import loss_steps as loss_steps
from distir.interpreters.train import losses as losses
from distir.interpreters.train import (
    normalization as normalization,
)
from distir.interpreters.train import optimizers as optimizers
from distir.interpreters.train import (
    softmax as softmax,
)
