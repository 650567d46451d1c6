import EVM from 0xf8d6e0586b0a20c7
import FlowToken from 0x0ae53cb6e3f42a79
import FungibleToken from 0xee82856bf20e2aa6

/// An EVM account of one's own, with some FLOW in it.
transaction(amount: UFix64) {
    prepare(signer: auth(BorrowValue, SaveValue) &Account) {
        let vault = signer.storage.borrow<auth(FungibleToken.Withdraw) &FlowToken.Vault>(from: /storage/flowTokenVault)!
        let coa <- EVM.createCadenceOwnedAccount()
        coa.deposit(from: <- (vault.withdraw(amount: amount) as! @FlowToken.Vault))
        signer.storage.save(<- coa, to: /storage/evm)
    }
}
