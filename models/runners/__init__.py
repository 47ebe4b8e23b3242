"""The engines that evaluate a decision's trees, each behind the protocol of `decode.protocol`."""
