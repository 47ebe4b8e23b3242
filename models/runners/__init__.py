"""What evaluates a decision's trees: the engines, each behind the protocol of `decode.protocol`."""
