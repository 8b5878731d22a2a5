import module from './vitest.js'

export const { lockkeeper } = module
