// Karpenter: the peer whose NodePool and NodeClaim ours are compared with. It asks for a newer Go than is needed to read it.
module slipway.dev/parts/karpenter

go 1.26.0

require sigs.k8s.io/karpenter v1.15.0 // indirect
