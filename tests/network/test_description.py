"""Networks as text."""

from __future__ import annotations

from graphs import EVERY_KIND

from znni.network.description import describe
from znni.network.network_file import network_from_text

LINES = """\
  conv1           conv 3x3x3, 2 -> 4 maps, padding 1x1x1, leaky_relu 0.2
  skip            conv 1x3x2, 4 -> 4 maps, dilation 1x2x1, groups 4, padding 0x2x0 before and \
0x2x1 after, identity
  affine1         factor and shift of 4 maps, prelu
  pool1           average-pool 3x3x3, stride 2x2x2, padding 1x1x1
  conv3           conv 2x2x2, 4 -> 8 maps, stride 2x2x2, gelu
  upsample1       trilinear upsampling 2x2x2
  conv_transpose1 transposed conv 3x3x3, 8 -> 4 maps, stride 2x2x2, padding 1x1x1 before and 0x0x1 \
after, identity
  add1            add 4 maps, elu, of conv_transpose1 and skip
  gate            conv 3x3x3, 2 -> 1 map, padding 1x1x1, sigmoid, of the input
  multiply1       multiply 4 maps by a gate, identity, of add1 and gate
  concat1         concat to 6 maps, of multiply1 and the input
  boundary        conv 2x2x2, 6 -> 1 map, padding 0x0x0 before and 1x0x1 after, sigmoid
  classes         conv 1x1x1, 6 -> 3 maps, softmax, of concat1
  outputs         concat to 4 maps, of boundary and classes
  input           value * 1 + 0
  weights         none named"""


def test_each_layer_has_a_line() -> None:
    network = network_from_text(EVERY_KIND, "unet.yaml")
    first, *lines = describe(network).splitlines()
    assert first == (
        "unet: 14 layers, 1,517 parameters, 2 -> 4 maps, "
        "computed over the whole volume in blocks of multiples of 4x4x4"
    )
    assert lines == LINES.splitlines()
