import FlowFees from 0xe5a8b7f23e8b548f

/// What was paid in fees and lies in the contract itself, not in its account's vault.
access(all) fun main(): UFix64 {
    return FlowFees.getFeeBalance()
}
