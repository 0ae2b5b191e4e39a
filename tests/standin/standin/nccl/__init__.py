"""NCCL without a GPU: ranks are threads or processes of one machine, and bytes go over sockets."""
