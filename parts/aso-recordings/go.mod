// Newer recorded ARM traffic that the simulated Azure is held to, beside that of parts/aso. Only the recordings are
// read; nothing of the module is compiled.
module slipway/parts/aso-recordings

go 1.26.0

require github.com/Azure/azure-service-operator/v2 v2.20.0
