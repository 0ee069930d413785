"""Thirty questions over the Chinook sample database, written for these tests."""

from __future__ import annotations

CHINOOK: tuple[tuple[str, str], ...] = (
    ("How many tracks are there?", "SELECT COUNT(*) FROM Track"),
    ("How many customers live in Brazil?", "SELECT COUNT(*) FROM Customer WHERE Country = 'Brazil'"),
    ("Which countries do customers come from? Each once.", "SELECT DISTINCT Country FROM Customer"),
    ("Names of the genres, sorted by name.", "SELECT Name FROM Genre ORDER BY Name"),
    ("What is the longest track, in milliseconds?", "SELECT MAX(Milliseconds) FROM Track"),
    ("Titles of the albums of AC/DC.",
     "SELECT a.Title FROM Album a JOIN Artist r ON r.ArtistId = a.ArtistId WHERE r.Name = 'AC/DC'"),
    ("How many invoices go to each billing country?",
     "SELECT BillingCountry, COUNT(*) FROM Invoice GROUP BY BillingCountry"),
    ("The total of all invoices of customers from the USA.",
     "SELECT SUM(i.Total) FROM Invoice i JOIN Customer c ON c.CustomerId = i.CustomerId WHERE c.Country = 'USA'"),
    ("Last names of the employees whose title is Sales Support Agent, sorted.",
     "SELECT LastName FROM Employee WHERE Title = 'Sales Support Agent' ORDER BY LastName"),
    ("Names of the tracks that cost more than 1.20 and last more than 40 minutes.",
     "SELECT Name FROM Track WHERE UnitPrice > 1.2 AND Milliseconds > 2400000"),
    ("Which composers wrote tracks of the genre Jazz? Each once.",
     "SELECT DISTINCT t.Composer FROM Track t JOIN Genre g ON g.GenreId = t.GenreId "
     "WHERE g.Name = 'Jazz' AND t.Composer IS NOT NULL"),
    ("The average length of a track per genre.",
     "SELECT g.Name, AVG(t.Milliseconds) FROM Track t JOIN Genre g ON g.GenreId = t.GenreId GROUP BY g.Name"),
    ("How many albums does each artist have who has more than 5?",
     "SELECT r.Name, COUNT(*) FROM Artist r JOIN Album a ON a.ArtistId = r.ArtistId GROUP BY r.ArtistId "
     "HAVING COUNT(*) > 5"),
    ("The ids of the ten longest tracks, the longest first.",
     "SELECT TrackId FROM Track ORDER BY Milliseconds DESC, TrackId LIMIT 10"),
    ("Emails of the customers who are looked after by Jane Peacock.",
     "SELECT c.Email FROM Customer c JOIN Employee e ON e.EmployeeId = c.SupportRepId "
     "WHERE e.FirstName = 'Jane' AND e.LastName = 'Peacock'"),
    ("Artists without an album.", "SELECT Name FROM Artist WHERE ArtistId NOT IN (SELECT ArtistId FROM Album)"),
    ("How many tracks does each media type have?",
     "SELECT m.Name, COUNT(*) FROM MediaType m JOIN Track t ON t.MediaTypeId = m.MediaTypeId GROUP BY m.Name"),
    ("Cities with more than one customer.", "SELECT City FROM Customer GROUP BY City HAVING COUNT(*) > 1"),
    ("Number of different tracks that were ever sold.", "SELECT COUNT(DISTINCT TrackId) FROM InvoiceLine"),
    ("The invoice ids with a total above 15, the largest total first.",
     "SELECT InvoiceId FROM Invoice WHERE Total > 15 ORDER BY Total DESC, InvoiceId"),
    ("Names of the playlists with more than 200 tracks.",
     "SELECT p.Name FROM Playlist p JOIN PlaylistTrack t ON t.PlaylistId = p.PlaylistId "
     "GROUP BY p.PlaylistId HAVING COUNT(*) > 200"),
    ("How many customers does each employee look after?",
     "SELECT e.LastName, COUNT(*) FROM Employee e JOIN Customer c ON c.SupportRepId = e.EmployeeId "
     "GROUP BY e.EmployeeId"),
    ("The smallest and the largest invoice.", "SELECT MIN(Total), MAX(Total) FROM Invoice"),
    ("Different artists with a track of the genre Blues, sorted by name.",
     "SELECT DISTINCT r.Name FROM Artist r JOIN Album a ON a.ArtistId = r.ArtistId "
     "JOIN Track t ON t.AlbumId = a.AlbumId JOIN Genre g ON g.GenreId = t.GenreId WHERE g.Name = 'Blues' "
     "ORDER BY r.Name"),
    ("Employees with the last name of whom they report to.",
     "SELECT e.LastName, m.LastName FROM Employee e JOIN Employee m ON m.EmployeeId = e.ReportsTo"),
    ("How many megabytes do the tracks of the genre Rock take?",
     "SELECT SUM(t.Bytes) / 1000000 FROM Track t JOIN Genre g ON g.GenreId = t.GenreId WHERE g.Name = 'Rock'"),
    ("Customers from Germany, last name and city, sorted by last name.",
     "SELECT LastName, City FROM Customer WHERE Country = 'Germany' ORDER BY LastName"),
    ("Album ids with at least 25 tracks.", "SELECT AlbumId FROM Track GROUP BY AlbumId HAVING COUNT(*) >= 25"),
    ("Tracks by the composer Angus Young that cost 0.99.",
     "SELECT Name FROM Track WHERE Composer LIKE '%Angus Young%' AND UnitPrice = 0.99"),
    ("Different billing cities of invoices above 10.", "SELECT DISTINCT BillingCity FROM Invoice WHERE Total > 10"),
)  # fmt: skip
