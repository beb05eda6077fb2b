"""A small U-Net that can be swept."""

UNET = """\
name: unet
layers:
  - {name: a, conv: {features: 4, kernel: 3, padding: same, activation: relu}}
  - {name: b, conv: {features: 4, kernel: 3, padding: same, activation: relu}}
  - {name: down, pool: {window: 2}}
  - {name: c, conv: {features: 8, kernel: 3, padding: same, activation: relu}}
  - {name: up, conv_transpose: {features: 4, kernel: 2, stride: 2}}
  - {name: join, from: [b, up], concat: {}}
  - {name: d, conv: {features: 4, kernel: 3, padding: same, activation: relu}}
  - {name: out, conv: {features: 1, kernel: 1}}
"""
