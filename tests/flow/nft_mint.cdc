import ExampleNFT from 0xf8d6e0586b0a20c7
import NonFungibleToken from 0xf8d6e0586b0a20c7

transaction(count: Int, to: Address) {
    prepare(signer: auth(BorrowValue) &Account) {
        let minter = signer.storage.borrow<&ExampleNFT.NFTMinter>(from: ExampleNFT.MinterStoragePath)!
        let receiver = getAccount(to).capabilities.borrow<&{NonFungibleToken.Receiver}>(ExampleNFT.CollectionPublicPath)!
        var at = 0
        while at < count {
            receiver.deposit(token: <- minter.mintNFT(
                name: "An item", description: "Of the tests", thumbnail: "https://example.org/".concat(at.toString()), royalties: []
            ))
            at = at + 1
        }
    }
}
