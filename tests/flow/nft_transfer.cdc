import ExampleNFT from 0xf8d6e0586b0a20c7
import NonFungibleToken from 0xf8d6e0586b0a20c7

transaction(ids: [UInt64], to: Address) {
    prepare(signer: auth(BorrowValue) &Account) {
        let collection = signer.storage.borrow<auth(NonFungibleToken.Withdraw) &ExampleNFT.Collection>(from: ExampleNFT.CollectionStoragePath)!
        let receiver = getAccount(to).capabilities.borrow<&{NonFungibleToken.Receiver}>(ExampleNFT.CollectionPublicPath)!
        for id in ids {
            receiver.deposit(token: <- collection.withdraw(withdrawID: id))
        }
    }
}
