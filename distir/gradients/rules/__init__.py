"""The gradient rules of ONNX and train ops, one file per family."""

from distir.gradients.rules import (
    activation as activation,
)
from distir.gradients.rules import (
    arithmetic as arithmetic,
)
from distir.gradients.rules import attention as attention
from distir.gradients.rules import batch_normalization as batch_normalization
from distir.gradients.rules import (
    constant as constant,
)
from distir.gradients.rules import (
    contraction as contraction,
)
from distir.gradients.rules import convolution as convolution
from distir.gradients.rules import dropout as dropout
from distir.gradients.rules import (
    elementwise as elementwise,
)
from distir.gradients.rules import group_normalization as group_normalization
from distir.gradients.rules import indexing as indexing
from distir.gradients.rules import losses as losses
from distir.gradients.rules import (
    normalization as normalization,
)
from distir.gradients.rules import reduction as reduction
from distir.gradients.rules import rotary as rotary
from distir.gradients.rules import scatter as scatter
from distir.gradients.rules import shape as shape
