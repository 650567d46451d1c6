import FlowToken from 0x0ae53cb6e3f42a79
import FungibleToken from 0xee82856bf20e2aa6

/// From the first signer to the second, whom the first pays for.
transaction(amount: UFix64) {
    prepare(from: auth(BorrowValue) &Account, to: &Account) {
        let vault = from.storage.borrow<auth(FungibleToken.Withdraw) &FlowToken.Vault>(from: /storage/flowTokenVault)!
        let receiver = to.capabilities.borrow<&{FungibleToken.Receiver}>(/public/flowTokenReceiver)!
        receiver.deposit(from: <- vault.withdraw(amount: amount))
    }
}
