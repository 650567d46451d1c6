transaction(name: String) {
    prepare(signer: auth(RemoveContract) &Account) {
        signer.contracts.remove(name: name) ?? panic("there is no such contract")
    }
}
