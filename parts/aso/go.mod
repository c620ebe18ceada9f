// Pins Azure Service Operator: its recorded ARM traffic is what the simulated Azure is held to.
module slipway/parts/aso

go 1.26.0

require github.com/Azure/azure-service-operator/v2 v2.13.0 // indirect
