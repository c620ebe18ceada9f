module slipway.dev/parts/aso-table

go 1.26.0

// Pinned for its source text only: the table is read from the module's generated types, nothing of it is compiled.
require github.com/Azure/azure-service-operator/v2 v2.13.0
