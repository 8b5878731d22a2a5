package znode

import "testing"

// TestDistinguishedNames compares validDN with what Java 17 accepts
// (javax.security.auth.x500.X500Principal).
func TestDistinguishedNames(t *testing.T) {
	for _, s := range []string{
		"", "CN=a", "cn=a", "CN=a, OU=b", "CN=", "1.2.3=a", "OID.1.2.3=a", "oid.1.2.3=a", "1.2=a", "2.999=a", "CN=a;OU=b", "CN=a+OU=b",
		"CN=\"a\"", "CN=\"a\" ", "CN=\"a,b\"", "CN=\"a\\,b\"", "CN=a\\,b", "CN=a\\41", "CN=a#b", "CN=a=b", " CN=a", "CN =a", "CN= a",
		"CN=a\x0aOU=b", "CN=a\x0a", "\x0aCN=a", "EMAILADDRESS=x", "EMAIL=x", "T=x", "IP=x", "S=x", "ST=x", "STREET=x", "DC=x", "DNQ=x",
		"DNQUALIFIER=x", "SURNAME=x", "GIVENNAME=x", "INITIALS=x", "GENERATION=x", "UID=x", "SERIALNUMBER=x", "L=x", "O=x", "OU=x",
		"C=x", "C=xx", "C=xxx", "CN=ä", "CN=\x00", "CN=  ", "CN=a  ,OU=b", "CN=a\\ ", "CN=\\ a", "CN=\\#a", "CN=\\=a", "CN=a\\=b",
		"CN=a\\\\b", "CN=a\\;b", "CN=a\\+b", "CN=a\\<b", "CN=a\\\"b", "CN=a\\\x0ab", "CN=\\20", "CN=\\ff", "CN=\"\\41\"", "CN=\"#\"",
		"CN=a\\,", "CN=\"a\",OU=b", "CN=\"a\"+OU=b", "2.5.4.3=a", " 2.5.4.3 =a", "1.2.840.113549.1.9.1=a",
		"1.2.99999999999999999999=a", "01.2.3=a", "1.02.3=a",
	} {
		if !validDN(s) {
			t.Errorf("%q should be valid", s)
		}
	}
	for _, s := range []string{
		"CN=a,", ",CN=a", "CN", "=a", "XX=a", "1=a", "9.2.3=a", "1.40.3=a", "1..2=a", "1.2.=a", "CN=a+", "CN=#0401", "CN=#04", "CN=#",
		"CN=#0", "CN=#zz", "CN=#04012", "CN=#0401 ", "CN=#0401 x", "CN=\"a", "CN=\"a\"x", "CN=\"a\\x\"", "CN=a\\x", "CN=a\\4",
		"CN=a\\", "CN=a<b", "CN=a>b", "CN=a\"b", "C N=a", "E=x", "SN=x", "GN=x", "TITLE=x", "POSTALCODE=x", "  ", "CN=\\zz",
		"OID.CN=a", "cn=a,ou", "CN=a,,OU=b", "CN=a,;OU=b", "CN=a\"b\"c", "0.40=a", "3.1=a", "CN=A, =b", "anyone", "x509",
	} {
		if validDN(s) {
			t.Errorf("%q should be invalid", s)
		}
	}
}
