module example/mqwire

go 1.21
