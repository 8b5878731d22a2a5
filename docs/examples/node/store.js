'use strict'

// Store is what the lock protects. It remembers the highest token that it has seen, and refuses lower
// ones, unless it is careless. audit is told of each write, before it is answered.
class Store {
  text = ''
  #highest = 0n

  constructor({ careless = false, audit = () => {} } = {}) {
    this.careless = careless
    this.audit = audit
  }

  async write(text, token) {
    await this.audit(token)
    if (token < this.#highest && !this.careless) return false
    this.#highest = token
    this.text = text
    return true
  }
}

module.exports = { Store }
