"""mq beside the brokers that people use: the same work, the same durability, one run. `make compare`."""
