import lockkeeper from './index.js'

export const { Lockkeeper, LockkeeperError, sessionOf, tokenOf, binary } = lockkeeper
