// Pins the cert-manager whose custom resources clusterctl's stories install. Nothing of it is built.
module slipway/parts/cert-manager

go 1.26.0

require github.com/cert-manager/cert-manager v1.21.1 // indirect
