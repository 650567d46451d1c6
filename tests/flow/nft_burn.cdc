import Burner from BURNER
import ExampleNFT from 0xf8d6e0586b0a20c7
import NonFungibleToken from 0xf8d6e0586b0a20c7

transaction(id: UInt64) {
    prepare(signer: auth(BorrowValue) &Account) {
        let collection = signer.storage.borrow<auth(NonFungibleToken.Withdraw) &ExampleNFT.Collection>(from: ExampleNFT.CollectionStoragePath)!
        Burner.burn(<- collection.withdraw(withdrawID: id))
    }
}
