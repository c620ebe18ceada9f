// Pins the peer whose custom resources ours are compared with. Nothing of it is built.
module slipway/parts/capz

go 1.26.0

require sigs.k8s.io/cluster-api-provider-azure v1.21.0 // indirect
