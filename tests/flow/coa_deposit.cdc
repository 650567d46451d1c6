import EVM from 0xf8d6e0586b0a20c7
import FlowToken from 0x0ae53cb6e3f42a79
import FungibleToken from 0xee82856bf20e2aa6

/// To any EVM account.
transaction(amount: UFix64, to: String) {
    prepare(signer: auth(BorrowValue) &Account) {
        let vault = signer.storage.borrow<auth(FungibleToken.Withdraw) &FlowToken.Vault>(from: /storage/flowTokenVault)!
        EVM.addressFromString(to).deposit(from: <- (vault.withdraw(amount: amount) as! @FlowToken.Vault))
    }
}
